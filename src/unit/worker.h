// The unit process: opens the plan it is handed, then takes commands from the channel and computes steps until it is told
// to end.
#pragma once

#include "base/err.h"

// Descriptors that the front hands over under these numbers.
enum { WORKER_FD_PLAN = 3, WORKER_FD_CHANNEL, WORKER_FD_EVENTS };

// Runs until CHANNEL_END. What fails before the unit is ready is told through the channel too; only where there is no
// channel, by *reterr alone. One for a process: it uses the calling thread as the unit's first.
enum iso_err worker_run(struct iso_errinfo *reterr) ISO_MUST_USE;
