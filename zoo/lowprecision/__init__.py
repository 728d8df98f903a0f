"""Training in low precision, as it is done today: recipes, layouts, and bugs with their twins."""
