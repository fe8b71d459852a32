#pragma once
// Times the generator on tools of real servers, in turns with datamodel-code-generator, and prints
// a table. Says so and does nothing when the corpora are not beside the checkout.
void measure_apigen(int rounds);
