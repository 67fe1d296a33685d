"""The live page: what pipelines do, for people, in a browser. Read only.

*What lives here.* `server` answers browsers, `board` has what they see, `watched`, `outputs` and `trends` gather it, `sections`, `draw` and
`markup` make HTML of it, and `request` and `door` say where it is shown and to whom.

*What may be touched.* A socket that listens. Outputs are only read.

*What it may know.* What the command knows; nothing that runs waits for the page, or knows that there is one.

*Where its facts come from.* The same places as everywhere else: phases and failures from `cli.run.status`, numbers from the meter that
Prometheus reads, and what an output has from what `penstock status` prints. `watched` puts these side by side for each pipeline. `outputs`
looks at a ledger now and again, and only while somebody looks at the page. `trends` keeps five minutes of numbers.

*How a page stays right.* `sections` makes HTML of the facts, once for all viewers (`board`). Each viewer is sent the sections that
have changed, over one connection that stays open (server-sent events). `page.js` puts them into the page and leaves alone what is the same:
focus, selection and unfolded rows stay. A lost connection is made again, so a page that is left open survives a restart of the command,
and is reloaded if the command now has another version. Everything that is kept is bounded, in the server and in the page.

*Strangers' text.* Names, records and messages are written by others. `markup` builds a tree of elements, in which text stays text, and
escapes what a screen would interpret or hide. A content security policy allows only the scripts and styles of this package.

*Who may look* is decided by `door`. Without a token only this machine may, asked for by its own name, so that no site which a browser
visits can have it read the page; from elsewhere, whoever has the token.
"""
