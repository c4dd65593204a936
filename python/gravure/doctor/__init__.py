"""What `gravure.diagnose` looks at while steps run: what moves, who holds results, what the library
says. It runs nothing and captures nothing."""
