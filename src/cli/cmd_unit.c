// isochron unit: the unit process that `serve` starts, not for people.
#include "cli/cli.h"
#include "unit/worker.h"

int cmd_unit(int argc, char **argv)
{
    struct iso_errinfo e;
    (void)argv;
    if (argc > 1)
        return CLI_EXIT_USAGE;
    // Where there is a channel, `serve` tells what failed.
    return iso_err_exit_code(worker_run(&e));
}
