"""The winner of a study, and the final that measures its best candidates again."""
