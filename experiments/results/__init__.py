"""Tables and figures of the documents, made from the records of what was run."""
