#pragma once

// What `ipybox host` adds to an execution, to a call, and to one that its client is asked about,
// printed as tables.
void measure_host(int rounds);
