"""Where source comes from: git, Debian's source archive, an archive, a folder, a bundle.

`fetch` brings whatever a `SourceChoice` names into an empty folder; each kind has its module
(`git`, `debian`, `sdist`, `bundle`), and `patches` changes what was brought.
`extract` is the only one that unpacks, `download` the only one that speaks http, `programs`
the only one that starts a program. Everything that comes is a stranger's until it is checked.
"""
