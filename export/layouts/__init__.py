"""Other layouts of a decoder's files, for programs that do not read bundles."""
