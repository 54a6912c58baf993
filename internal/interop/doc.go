// Package interop tests that the locks and elections of package coord, of Apache Curator (Java)
// and of kazoo (Python) exclude each other, and wait in one queue, when they use one path on one
// ZooKeeper.
//
// Workers in the three languages are processes with one protocol, see peer. They take turns with
// one lock, in the order of the numbers of their nodes; wait for, and succeed, a holder or leader
// of each other language that releases or is killed; read and write under Curator's and coord's
// read-write locks, with downgrades; and ask each other to release (revocation, Curator and coord
// only). The test to which they report finds overlaps and a wrong order, which has a test too.
// Curator does not see the names that kazoo chooses by itself; a test shows that, and so why
// kazoo has to use other names.
//
// Cycles of locks and items of queues are measured beside Curator's. The other
// recipes share no path with other libraries. No network fails in these tests.
//
//	go test -v ./internal/interop                            # -v shows the figures
//	COORD_LONG=1 go test -v -timeout 1h ./internal/interop   # turns for ten minutes
//
// The tests need Linux, a JDK, Curator's recipes and kazoo for the system's Python; on Debian the
// packages default-jdk-headless, libcurator-recipes-java and python3-kazoo.
package interop
