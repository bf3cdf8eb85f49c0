"""What one storage engine promises beyond the conformance suite."""
