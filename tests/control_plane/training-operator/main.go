// The training-operator's controller of PyTorchJobs, as the project publishes it, without its webhooks: they only
// validate, and want a Service and certificates of the cluster.
package main

import (
	"flag"
	"os"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flag.Parse() // --kubeconfig is controller-runtime's own
	ctrl.SetLogger(zap.New())
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgo.AddToScheme(scheme))
	utilruntime.Must(kubeflow.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:  scheme,
		Metrics: metrics.Options{BindAddress: "0"},
	})
	fail(err)
	without := common.GenNonGangSchedulerSetupFunc()
	fail(pytorch.NewReconciler(manager, without).SetupWithManager(manager, 1))
	fail(manager.Start(ctrl.SetupSignalHandler()))
}

func fail(err error) {
	if err != nil {
		ctrl.Log.Error(err, "it cannot go on")
		os.Exit(1)
	}
}
