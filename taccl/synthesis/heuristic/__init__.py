"""The compiled list schedulers: problems with more moves than a model or the fold can hold."""
