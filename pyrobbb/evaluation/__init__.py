"""What a posterior is worth: metrics, strange inputs told apart, diagnostics, ArviZ."""
