#pragma once

// What `ipybox host` adds to an execution and to a call that is asked about, printed as tables.
void measure_host(int rounds);
