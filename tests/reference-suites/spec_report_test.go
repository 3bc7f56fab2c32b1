// Added to each suite of the reference: a line for each spec, with its state, its name, why it failed, and whether a plugin
// has run. PACKAGE is replaced by the suite's package.

package PACKAGE

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2"
)

var _ = ginkgo.ReportAfterEach(func(spec ginkgo.SpecReport) {
	report, err := os.OpenFile(os.Getenv("SPEC_REPORT"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer report.Close()
	oneLine := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	called := "uncalled"
	programs, _ := filepath.Glob("/run/cni-plugins/.*")
	for _, program := range programs {
		info, err := os.Stat(program)
		if err != nil {
			panic(err)
		}
		never := time.Unix(1, 0) // execve(2) sets the time of access
		if accessed := info.Sys().(*syscall.Stat_t).Atim; time.Unix(accessed.Unix()) != never {
			called = "called"
		}
		if err := os.Chtimes(program, never, info.ModTime()); err != nil {
			panic(err)
		}
	}
	fmt.Fprintf(report, "%s\t%s\t%s\t%s\n", spec.State, oneLine(spec.FullText()), oneLine(spec.FailureMessage()), called)
})
