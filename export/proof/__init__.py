"""Proves bundles: probes, references and certificates."""
