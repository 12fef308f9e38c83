"""English pronouns. Nothing here needs TensorFlow."""

POSSESSIVE = frozenset(("my", "your", "his", "her", "its", "our", "their"))
_PERSONAL = ("i", "me", "you", "he", "him", "she", "it", "we", "us", "they", "them")
_REFLEXIVE = ("myself", "yourself", "himself", "herself", "itself", "ourselves", "themselves")
PRONOUNS = POSSESSIVE.union(_PERSONAL, _REFLEXIVE)
