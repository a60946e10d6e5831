"""What a site's update would give away: published attacks, run by the site itself on its own images before it agrees.

    from semisilo.probe.probe import ProbeSettings, probe
    found = probe("study.toml", out=Path("probes/first"), settings=ProbeSettings())

Both sides stand behind it: the coordinator's engine asks, the silo's trainer answers, and what would leave is attacked.
Imported by `semisilo.cli` and by benchmarks. Nothing is sent anywhere.
"""
