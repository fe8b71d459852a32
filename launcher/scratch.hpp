#pragma once

// The subcommand `scratch`: see its usage. Returns the exit code when it could not become the
// command.
int scratch_main(int argc, char** argv);
