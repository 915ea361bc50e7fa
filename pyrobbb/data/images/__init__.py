"""MNIST and its relatives: IDX files found, downloaded, checked and split."""
