"""Ways to change a network, one file each; catalogue.py has a row for each."""
