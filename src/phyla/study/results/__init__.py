"""What is stored of a study, read without its training code."""
