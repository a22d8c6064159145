"""The cache as a tree, and the tree as an environment."""
