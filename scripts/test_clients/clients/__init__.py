"""What runs in the clients' own environments: one script a package, without anything of this project."""
