"""How checks scale: engines, and what else makes large ones possible; one module for each part."""
