"""Good bundles have nothing to say about them."""

from __future__ import annotations

from llamabuild.verify.check import verify_path


def test_nothing_is_found_on_a_good_cpu_bundle(cpu_bundle):
    report = verify_path(cpu_bundle.root, context=cpu_bundle.context, recipe=cpu_bundle.recipe)
    assert [finding for finding in report.findings if finding.name != "program.same-user"] == []


def test_nothing_is_found_on_a_good_cuda_bundle_but_that_its_driver_is_not_here(cuda_bundle):
    report = verify_path(cuda_bundle.root, context=cuda_bundle.context, recipe=cuda_bundle.recipe)
    assert [finding.name for finding in report.findings if finding.name != "program.same-user"] == ["plugin.not-tried"]


def test_nothing_is_found_on_a_good_hip_bundle(hip_bundle_gfx1100):
    made = hip_bundle_gfx1100
    report = verify_path(made.root, context=made.context, recipe=made.recipe)
    assert [finding for finding in report.findings if finding.name != "program.same-user"] == []
