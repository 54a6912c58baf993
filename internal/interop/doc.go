// Package interop tests that the locks and elections of package coord, of Apache Curator
// (Java) and of kazoo (Python) exclude each other, and wait in one queue, when they use one
// path on one ZooKeeper.
//
// Worker processes in the three languages use one protocol, see peer. The tests need Linux, a
// JDK, Curator's recipes and kazoo for the system's Python; on Debian the packages
// default-jdk-headless, libcurator-recipes-java and python3-kazoo. COORD_LONG=1 in the
// environment runs them for minutes; -v shows the figures.
package interop
