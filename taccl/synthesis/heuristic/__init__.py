"""The compiled list schedulers: problems with more hops than a model or the quotient can hold."""
