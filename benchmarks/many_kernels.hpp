#pragma once

// What 10, 50 and 100 kernels cost, idle and at work, on each backend; printed as a table.
void measure_many_kernels();
