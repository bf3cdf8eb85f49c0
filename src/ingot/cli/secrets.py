"""`ingot secrets`: manage secrets, which are used by name and never shown."""

from __future__ import annotations

import typer

from ingot.cli.context import CommandContext, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.record_commands import record_commands
from ingot.identity.secret_values import SECRET_KIND

app = record_commands(SECRET_KIND, "Manage secrets, which are used by name and never shown.", raw="value")


@app.command("rotate-key", epilog=examples_epilog("ingot secrets rotate-key"))
@server_command
def rotate_key(context: CommandContext) -> None:
    """Encrypt the secrets of all tenants with the current INGOT_SECRET_KEY.

    To change the key, start the server with INGOT_SECRET_KEY=new,old, run this command, and then remove the old key.
    The exit code is 1 if a secret could not be decrypted.
    """
    rotation = context.client.admin.rotate_secret_key()
    context.out.outcome(rotation, f"Encrypted {rotation.rotated} secrets with key {rotation.key_id}.")
    if rotation.unreadable and not context.out.json:
        context.out.message(
            f"{rotation.unreadable} secrets could not be decrypted. Add their key to INGOT_SECRET_KEY and try again."
        )
    if rotation.unreadable:  # A script must not continue and remove the old key.
        raise typer.Exit(1)
