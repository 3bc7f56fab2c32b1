// Added to each suite of the reference: a line for each spec, with its state, its name and why it failed. PACKAGE is replaced
// by the suite's package.

package PACKAGE

import (
	"fmt"
	"os"
	"strings"

	"github.com/onsi/ginkgo/v2"
)

var _ = ginkgo.ReportAfterEach(func(spec ginkgo.SpecReport) {
	report, err := os.OpenFile(os.Getenv("SPEC_REPORT"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer report.Close()
	oneLine := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	fmt.Fprintf(report, "%s\t%s\t%s\n", spec.State, oneLine(spec.FullText()), oneLine(spec.FailureMessage()))
})
