// Package supervise is what a process and its supervisor say to each other, and the part of the supervisor: coordctl guard.
//
// A process reports the sessions that it opens. When it has died, the supervisor ends them, so that the locks of the
// process do not wait for the session timeout. Its rules:
//
//   - Only the death of the reporting process ends a session. The kernel attaches a pidfd of the sender to each report (SCM_PIDFD, Linux 6.5).
//     It refers to that process for ever, unlike a process id, and tells the end of its last thread. The end of a
//     connection proves nothing: a process can close its descriptors and live, and a child can keep them open.
//   - On older kernels only the direct child of the supervisor counts: its process id is its own until the supervisor has reaped it.
//   - Each session keeps the pidfd of the report that named it. So a report that arrives after the death of its process has the proof with it.
//     When the process has died, all its reports are read before a session is ended, so that one which it has closed needs no request.
//   - Reports are untrusted. Their length, and the sessions and connections of each process and of all, are bounded. No address in them is dialed unless the
//     supervisor's own configuration has it.
//   - Nothing blocks the reporting process. If the supervisor does not run, the service ends the sessions after their timeout.
package supervise
