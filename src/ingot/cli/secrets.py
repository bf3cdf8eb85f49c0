"""`ingot secrets`: values that are used by name and never shown."""

from __future__ import annotations

from ingot.cli.context import CommandContext, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.record_commands import record_commands
from ingot.identity.secret_values import SECRET_KIND

app = record_commands(SECRET_KIND, "Keep values that are used by name and never shown.", raw="value")


@app.command("rotate-key", epilog=examples_epilog("ingot secrets rotate-key"))
@server_command
def rotate_key(ask: CommandContext) -> None:
    """Encrypt the secrets of all tenants with the current INGOT_SECRET_KEY.

    To change the key, start the server with INGOT_SECRET_KEY=new,old, run this, and then remove the old one.
    """
    done = ask.client.admin.rotate_secret_key()
    ask.out.outcome(done, f"{done.rotated} secrets were encrypted again, with the key {done.key_id}.")
    if done.unreadable and not ask.out.json:
        ask.out.message(f"{done.unreadable} secrets could not be decrypted: name their key in INGOT_SECRET_KEY too.")
