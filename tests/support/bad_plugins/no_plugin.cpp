// A shared object that exports a function and no plugin.
extern "C" int answer() { return 42; }
