"""The live page: what pipelines do, for people, in a browser. Read only.

*Where its facts come from.* From where all others are: the phase and the failures are those of `cli.run.status`, the numbers are those of
the meter that Prometheus reads, and what an output has is what `penstock status` prints. `watched` puts these side by side for each
pipeline; `outputs` looks at a ledger now and again, and only while somebody looks at the page; `trends` keeps five minutes of numbers.

*How a page stays right.* `sections` makes HTML of the facts, once for all who look (`board`), and each of them is sent the sections that
have changed, over one connection that stays open (server-sent events). `page.js` puts them into the page, leaving alone what is the same:
focus, selection and what was folded out stay. A connection that is lost is made again, so a page that is left open over a restart goes on,
and is loaded again where the command has become another version. Everything that is kept is bounded, in the server and in the page.

*Strangers' text.* Names, records and messages are text of others. `markup` makes elements of a tree, so text cannot become anything else,
and what a screen would interpret or hide is escaped; scripts and styles come from this package alone, by a content security policy.

*Who may look* is said by `door`: without a token this machine alone, asked for by its own name, so that no site which a browser visits
can have it read the page; elsewhere who has the token.
"""
