// The models of a server: opening them, what their units tell, reloading one. server.h has struct served.
#pragma once

#include "serve/server.h"

// Opens the engine of each of the config's models. On failure those that were opened stay, to be closed by the caller.
enum iso_err served_open(struct server *s, const struct server_plan *plans,
                         const struct channel_config *channel, struct iso_errinfo *reterr) ISO_MUST_USE;
// Closes the engines that are to be closed, or all. Not from their own callbacks: one that says it is gone is still in use.
void served_sweep(struct server *s, bool all);
