"""What the pages of both sides share: what every request passes, the token, the server, and the design (`static/`),
which each side serves beside files of its own. The rooms `page` of both sides, and their commands, import it.

Scripts find each other by address: `./place.js`, `./store.js` are a side's own, whichever side serves the page.
"""
