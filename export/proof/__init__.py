"""The certificate of a bundle, and what it is measured on."""
