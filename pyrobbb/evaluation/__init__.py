"""Evaluating a posterior: metrics, out-of-distribution detection, diagnostics, ArviZ."""
