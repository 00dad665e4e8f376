"""Measures the real control plane; may import everything."""
