"""Where source comes from: git, Debian's source archive, an archive, a folder, a bundle.

`fetch` puts whatever a `SourceChoice` names into an empty folder; each kind has its module
(`git`, `debian`, `sdist`, `bundle`), and `patches` changes what was fetched.
`extract` is the only one that unpacks, `download` the only one that asks servers for files.
Everything that comes is a stranger's until it is checked.
"""
