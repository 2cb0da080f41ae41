"""`aspire federation`: keys and certificates."""

from __future__ import annotations

from pathlib import Path

import click

SIGNED = "cert.pem and ca.pem"  # what a site needs beside the key that it made


@click.group("federation")
def federation_command() -> None:
    """Make keys and certificates for a server and its sites."""


folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
days_option = click.option(
    "--days", type=int, default=365, show_default=True, help="How long certificates are valid."
)
at_sites_option = click.option(
    "--keys-at-sites", is_flag=True, help="Sites make their keys themselves; see request."
)


@federation_command.command("init")
@folder_argument
@click.option("--sites", required=True, help="Names of the sites: a,b,c")
@click.option(
    "--server",
    "hosts",
    default="localhost,127.0.0.1",
    show_default=True,
    help="Names or addresses under which sites reach the server.",
)
@days_option
@at_sites_option
def init_command(folder: Path, sites: str, hosts: str, days: int, keys_at_sites: bool) -> None:
    """A CA, the server's kit and one kit per site, in the new folder DIR."""
    from aspire.engines.grpc import kits

    names = _split(sites)
    addresses = _split(hosts)
    kits.init(folder, names, addresses, days, keys_at_sites=keys_at_sites)
    if keys_at_sites:
        kit = Path("KIT")
        whose = "the CA and the server"
        steps = ["Then run", "", f"  at each site:   aspire federation request NAME {kit}"]
        steps += [f"  here:           aspire federation sign {folder} request.pem"]
    else:
        kit = folder / "sites" / names[0]
        whose = f"the CA, the server and {len(names)} sites"
        steps = [f"Give each site its folder in {kit.parent} by a safe way. Then run", ""]
    steps += [
        f"  on the server:  aspire server FILE.py --kit {folder / 'server'} "
        "--listen 0.0.0.0:8443 --out RUN",
        f"  at each site:   aspire site FILE.py --kit {_quoted(kit)} --connect {addresses[0]}:8443",
    ]
    click.echo(f"Keys of {whose} are in {folder}; nobody else may read them.")
    click.echo("\n".join(steps))


@federation_command.command("add")
@folder_argument
@click.argument("name")
@days_option
@at_sites_option
def add_command(folder: Path, name: str, days: int, keys_at_sites: bool) -> None:
    """A kit for one more site, for the next run; its name goes on the list of sites."""
    from aspire.engines.grpc import kits

    kits.add(folder, name, days, keys_at_sites=keys_at_sites)
    if keys_at_sites:
        click.echo(f"{name} is on the list of sites.")
    else:
        click.echo(f"The kit of {name} is in {folder / 'sites' / name}.")


@federation_command.command("request")
@click.argument("name")
@click.argument("kit", type=click.Path(path_type=Path))
def request_command(name: str, kit: Path) -> None:
    """At the site NAME: a key in the folder KIT, and a request for its certificate."""
    from aspire.engines.grpc import signing

    fingerprint = signing.request(kit, name)
    click.echo(
        f"The key of {name} is in {kit}; it stays there.\n"
        f"Send {kit / signing.REQUEST} to the federation's owner, and say its fingerprint:\n"
        f"{fingerprint}"
    )


@federation_command.command("sign")
@folder_argument
@click.argument("request", type=click.Path(path_type=Path))
@days_option
@click.option("--new-key", is_flag=True, help="The site has made another key than before.")
def sign_command(folder: Path, request: Path, days: int, new_key: bool) -> None:
    """A certificate for the key of REQUEST, if its site is on the list."""
    from aspire.engines.grpc import signing

    name, fingerprint = signing.sign(folder, request, days, new_key=new_key)
    click.echo(
        f"Signed for {name}, if this is the fingerprint that the site said:\n{fingerprint}\n"
        f"Send it {SIGNED} from {folder / 'sites' / name}; they are no secrets."
    )


@federation_command.command("renew")
@folder_argument
@days_option
def renew_command(folder: Path, days: int) -> None:
    """New certificates for the server and all listed sites, before the old ones expire."""
    from aspire.engines.grpc import signing

    renewed = signing.renew(folder, days)
    click.echo(
        f"Renewed for {days} days, keys as they were: {', '.join(kit.name for kit in renewed)}.\n"
        f"Put {SIGNED} from {folder / 'server'} and {folder / 'sites' / 'NAME'} into the kits that "
        "are in use;\nserver and sites take them while they run. They are no secrets."
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _quoted(path: Path) -> str:
    return f"'{path}'" if " " in str(path) else str(path)
