// Package proc starts the child processes of tests and benchmarks, and lets them report.
//
// A child is a server or a worker. On Linux the kernel kills it when its parent ends, however the
// parent ends. A worker is the test binary itself in a role with a task. It obeys lines on its
// standard input, and reports on its standard output, one JSON text on each line. Parent and
// workers read one clock, see Now.
package proc
