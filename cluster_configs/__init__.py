"""What operators write: strict YAML documents. Schema, loader and the shipped documents lie here."""
