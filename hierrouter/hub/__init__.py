"""The Hugging Face hub: what of it is on this machine, and the download of the rest."""
