"""Sets of archives with their provenance, notes and pages."""
