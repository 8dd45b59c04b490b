"""After the build: smoke test, GGUF headers, sizing, serve flags."""
