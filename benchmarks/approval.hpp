#pragma once

// What a policy of rules adds to a call, printed as a table.
void measure_approval(int rounds);
