"""Settings that several methods share; their spec modules inherit them, and nobody else but the halves reads them."""
