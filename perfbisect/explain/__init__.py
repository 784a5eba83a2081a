"""Why a change is slower: phases, functions, lines."""
