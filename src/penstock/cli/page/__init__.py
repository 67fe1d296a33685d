"""The live page: it shows people in a browser what pipelines do. Read only.

*What lives here.* `server` answers browsers, `board` holds what they see, `watched`, `outputs` and `trends` gather it,
`sections`, `draw` and `markup` turn it into HTML, and `request` and `door` decide where it is shown and to whom.

*What may be touched.* A socket that listens. Outputs are only read.

*What it may know.* Whatever the command knows. Nothing that runs waits for the page, or knows that there is one.

*Where its facts come from.* The same places as everywhere else: phases and failures from `cli.run.status`, numbers from
the meter that Prometheus reads, and the facts of an output from what `penstock status` prints. `watched` combines these
for each pipeline. `outputs` looks at a ledger now and again, and only while somebody looks at the page. `trends` keeps
five minutes of numbers.

*How a page stays right.* `sections` makes HTML of the facts, once for all viewers (`board`). Each viewer gets the
sections that have changed, over one connection that stays open (server-sent events). `page.js` puts them into the page
and does not touch what is the same: focus, selection and unfolded rows stay. The browser reopens a lost connection. So
a page that stays open survives a restart of the command; if the command has another version then, the page is reloaded.
Everything that server and page keep is bounded.

*Strangers' text.* Names, records and messages are written by others. `markup` builds a tree of elements, in which text
stays text, and escapes what a screen would interpret or hide. A content security policy allows only the scripts and
styles of this package.

*Who may look* is decided by `door`. Without a token only this machine may, and only if it is asked for by its own name;
so no site that a browser visits can make it read the page. From other machines whoever has the token may look.
"""
