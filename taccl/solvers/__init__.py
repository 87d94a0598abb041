"""Linear models with integer variables, and the engines that solve them, each in a worker process."""
